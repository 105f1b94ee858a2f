"""The command line, `orthrus-client`: one file for each command. What takes long to import is imported when it runs."""
