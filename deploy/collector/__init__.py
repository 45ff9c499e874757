"""OpenTelemetry's collector on this machine, which receives what services export."""
