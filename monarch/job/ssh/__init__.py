"""Hosts that are reached by ssh: see docs/ssh.md. `words` are the commands' words, `job` has SSHJob."""

from __future__ import annotations

from monarch.job.ssh.job import LoginJob, SSHJob

__all__ = ["LoginJob", "SSHJob"]
