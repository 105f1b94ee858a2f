"""What is run from a checkout, beside the server: measurements that make a table, and the check of an image."""
