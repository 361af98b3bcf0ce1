from monarch.actor import BootstrapCommand as BootstrapCommand
