"""What tells other systems how the queues are: Graphite, Prometheus, alerts."""
