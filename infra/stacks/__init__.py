"""The stacks: each environment has one for its streams and applications, and a bootstrap stack. Environments share no resources."""
