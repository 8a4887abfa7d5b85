"""The front end of a session model that streams the parts of a search for all objects.

A stream needs a model that is declared decoupled, and Triton refuses usual requests to such a model. So the session
model stays as it is, and this model hands it one part after the other.
"""
