"""The fields of each request and answer, as typed structs."""
