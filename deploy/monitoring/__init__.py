"""What Prometheus and Grafana need to watch a site: scrape configuration, alert rules, dashboards."""
