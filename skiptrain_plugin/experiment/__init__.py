"""The experiment: an INI file and command-line options read into frozen, typed, validated objects."""
