"""What can be measured: one file for each way of serving, all asked through `target.Target`."""
