from monarch.actor import Port as Port
