"""Connectors: one class for each kind of system. Connectors read and change objects and use no database."""
