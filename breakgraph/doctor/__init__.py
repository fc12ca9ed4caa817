"""The examination behind ``breakgraph doctor``: what is here, what would be used, what is wrong and how to mend it.

`collect` gathers the `facts`, asking whatever may hang or crash in `child` processes: `nvidia` asks NVIDIA's own
libraries, `trial` makes a capture. `causes` and `cautions` are the checks, each a function of the facts alone;
`diagnosis` puts what they find together, and `report` tells it as text and as JSON.
"""
