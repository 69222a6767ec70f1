"""The commands of the command line by name: where each lives, and a line on it, so that help need not load them.

Imports from every room: options in, one call, the answer printed.
"""

COMMANDS = {
    "plan": ("one_line", "The best plans for a model on some chips, in one line."),
    "solve": ("planning", "Find the K fastest plans for a spec, with proof."),
    "open": ("opening", "Show a plan, sweep or comparison in the browser to play with."),
    "serve": ("serving", "Edit a spec in the browser, and plan it again and again."),
    "search": ("apss", "The same search with the flags and the output of the APSS tool."),
    "evaluate": ("planning", "What a given plan gives, and which rules it breaks."),
    "check": ("explaining", "Hold a plan against every rule, with numbers."),
    "explain": ("explaining", "Why there is no plan, why not yours, what your wishes cost."),
    "batch": ("batch", "Solve a sweep of models, chips, sizes and prices; kept and resumed."),
    "compare": ("batch", "Days and dollars of several specs or clusters, in one table."),
    "replicas": ("replicas", "Shares of the batch for data parallelism over unequal chips."),
    "export": ("export", "Turn a plan into what a framework is started with."),
    "ranks": ("export", "Which rank stands where: every group of a plan."),
    "profile": ("profiling", "Measure this machine's device and write a chip file."),
    "tune": ("tuning", "Try plans on your cluster with your own command; kept and resumed."),
    "calibrate": ("evidence", "Learn from your own measured runs, for --calibration."),
    "validate": ("evidence", "How far off the predictions are on published, measured runs."),
    "models": ("catalogue", "The models of the catalogue, or one of them in detail."),
    "chips": ("catalogue", "The chips of the catalogue, or one of them in detail."),
    "networks": ("catalogue", "The networks of the catalogue, or one of them in detail."),
    "stacks": ("catalogue", "The software stacks that a spec can name, or one in detail."),
    "init": ("catalogue", "Write a commented spec to start from."),
    "import": ("importing", "A spec and today's plan from a script or a configuration."),
    "schema": ("catalogue", "Print the JSON Schema of a spec."),
}
"""Name -> module of this package, and the line that `apss-cp --help` shows."""
