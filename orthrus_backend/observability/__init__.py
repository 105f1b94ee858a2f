"""What is told about single calls: a line in a log, spans of a trace."""
