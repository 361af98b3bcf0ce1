"""Work on a job's hosts: commands, shells, forwarded ports.

General layout, from the inside out:

    plan, printer         which ranks run what; what people see of it
    actor, terminal_actor the side of the hosts
    run_command, interactive_shell, port_forwarder
                          exec_command, shell, PortForwarder
"""
