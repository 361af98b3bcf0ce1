from monarch.actor import ValueMesh as ValueMesh
