"""Identity management: read people, groups and other objects from connected systems, and keep these in step.

The files, in reading order:

- `shape` and `values`: what an object looks like, and how its values are stored and compared.
- `connectors`: how objects are read from a system and changed in it. Connectors use no database.
- `models`: what is stored.
- `expressions` and `scope`: the small languages in which rules are written.
- `rulebook`: all sync rules, compiled for one run.
- `runs`: imports, synchronisations and exports, page by page.
- `steps`: the step types that perform runs on a schedule.
"""
