"""Hosts that are pods of a Kubernetes cluster: see docs/kubernetes.md.

General layout, from the inside out:

    image_spec, manifests     what is asked for, as the API takes it
    pods                      what pods say of themselves: rank, address, why one is not ready
    kube_config, api_errors, api    the API server
    gateway                   a way in for a client outside the cluster
    mesh, job                 KubernetesJob
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("kubernetes") is None:
    raise RuntimeError("please install kubernetes to use KubernetesJob. `pip install 'pymonarch[kubernetes]'`")

from monarch.job.kubernetes.image_spec import ImageSpec
from monarch.job.kubernetes.job import KubernetesJob
from monarch.job.kubernetes.kube_config import KubeConfig

__all__ = ["ImageSpec", "KubeConfig", "KubernetesJob"]
