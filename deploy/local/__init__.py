"""A private Redis Cluster, MySQL, server and worker: `python -m deploy.local run`."""
