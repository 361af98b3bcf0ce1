from monarch import Extent as Extent
from monarch.actor import Point as Point
from monarch._shape.region import Region as Region
from monarch import Shape as Shape
from monarch import NDSlice as Slice
