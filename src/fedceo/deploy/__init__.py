"""From simulation to a federation: our methods, mechanism and ledger on Flower's messages.

carried.py   which experiments a federation can carry
records.py   a node's own records, or the server's public ones, as a Federation
messages.py  what crosses the wire, and what is refused at the server's end of it
client.py    a node: local training inside a mod that clips, noises and strips
grid.py      Flower's grid, where one node's unreadable reply harms nobody else
roster.py    which node speaks for which client
journal.py   the server's run folder: what is asked, spent, learnt and saved
strategy.py  a Flower strategy that hosts one of our methods
server.py    the same as a ServerApp
flower.py    all of it, for an app
new.py       writes an app from an experiment file
"""
