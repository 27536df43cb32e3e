"""Pure choices: which chain runs a request, which span a new node should host."""
