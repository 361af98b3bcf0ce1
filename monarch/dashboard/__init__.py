"""The dashboard: pages in a browser that show a running program, and the JSON that they are made of.

    routes.py    the routes, for whoever serves them (monarch.observer, monarch-dashboard)
    api.py       what each route answers: a query (queries.py) and a shape (shapes.py, tree.py, grids.py, icicle.py)
    guard.py     who may ask
    static/      the pages: HTML, CSS and ES modules as they are sent, nothing is built and nothing comes from elsewhere

It reads: the telemetry store by SQL, and what lives by the program's door. Nothing here changes a program.
"""
