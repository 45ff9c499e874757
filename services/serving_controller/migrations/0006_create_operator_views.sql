-- 0006_create_operator_views.sql: what operators' tools select from; they name no table of this schema
CREATE VIEW operator_wanted AS
SELECT tenant, slot, servable ->> 'digest' AS digest FROM wanted;

-- Where the requests of each slot go; `replicas` are pairs of id and incarnation.
CREATE VIEW operator_route AS
SELECT tenant, name AS slot, (route ->> 'generation')::bigint AS generation,
       route -> 'servable' ->> 'model_id' AS model_id, route -> 'servable' ->> 'digest' AS digest,
       route -> 'servable' ->> 'base_sha' AS base_sha,
       format('%s@%s', route -> 'servable' ->> 'full_name', route -> 'servable' ->> 'digest') AS served_name,
       route -> 'servable' ->> 'kind' = 'adapter' AS is_adapter,
       ARRAY(SELECT ARRAY[address ->> 'replica_id', address ->> 'incarnation']
               FROM jsonb_array_elements(route -> 'addresses') AS address) AS replicas
  FROM slot WHERE route IS NOT NULL;

-- What replicas may have loaded.
CREATE VIEW operator_loadable AS
SELECT served_name FROM operator_route
 UNION
SELECT format('%s@%s', desired ->> 'full_name', desired ->> 'digest') FROM slot WHERE state IN ('pending', 'ready')
 UNION
SELECT served_name FROM retired;

CREATE VIEW operator_replica AS
SELECT replica_id, incarnation, phase, loaded FROM replica;
