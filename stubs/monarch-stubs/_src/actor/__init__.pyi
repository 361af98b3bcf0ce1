from monarch import configure as configure
