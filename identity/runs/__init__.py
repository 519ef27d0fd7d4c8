"""Runs: what a run profile does to a connected system and to identities, page by page.

Each page is one transaction that begins by locking the activity of the attempt. If the attempt has ended, for
example because its worker was lost, the page writes nothing.
"""
