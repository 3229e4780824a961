"""Reports of the queues' state to other systems: Graphite, Prometheus, alerts."""
