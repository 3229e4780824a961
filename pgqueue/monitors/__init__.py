"""Reports of the queues' state: to Graphite and Prometheus, as alerts, and in words for people."""
