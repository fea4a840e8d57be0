"""The wire: frames, headers and bodies to values and back, without any I/O."""
