#!/bin/sh
# Format the volume once, with the password of the broker's own user in it; then become the broker.
set -eu
kafka=${KAFKA_HOME:-/opt/kafka}
configuration=${1:-/etc/retune/server.properties}
data=$(sed -n 's/^log.dirs=//p' "$configuration")
if [ ! -f "$data/meta.properties" ]; then
    "$kafka/bin/kafka-storage.sh" format -t "$("$kafka/bin/kafka-storage.sh" random-uuid)" -c "$configuration" \
        --add-scram "SCRAM-SHA-512=[name=broker,password=$BROKER_PASSWORD]"
fi
exec "$kafka/bin/kafka-server-start.sh" "$configuration"
