"""The thin process between an editor and the daemon. Imported at every start of an editor: nothing here imports anything
that a started interpreter has not got, but `_socket` and `select`, until a daemon has to be started.
"""
