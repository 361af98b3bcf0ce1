from monarch import Extent as Extent
from monarch.actor import MeshTrait as MeshTrait
from monarch import NDSlice as NDSlice
from monarch import Shape as Shape
from monarch import NDSlice as Slice
