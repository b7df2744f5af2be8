"""What a run reports to other systems: metrics for Prometheus, and traces for OpenTelemetry."""
