"""Federations of machines: the methods, mechanisms and ledger of a simulation on Flower's messages.

supported.py      which experiments a federation supports
records.py        a node's own records, or the server's public ones, as a Federation
messages.py       the messages between server and nodes, and the checks of a node's replies
client.py         a node: local training inside a mod that clips, noises and strips
grid.py           Flower's grid, in which one node's unreadable reply harms no other
node_registry.py  which node stands for which client
server_log.py     the server's run folder: the rounds asked, the ledger, metrics and checkpoints
strategy.py       a Flower strategy that hosts a method
server.py         the same as a ServerApp
flower.py         the names that an app needs
superlink.py      a SuperLink whose open port is for nodes alone
supernode.py      a SuperNode that runs the app on its disk and never code from the network
new.py            the app that `fedceo flower new` writes from an experiment file
"""
