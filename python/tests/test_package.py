"""What an installation of the package has."""

import importlib.metadata
import unittest

import tensorwire


class Package(unittest.TestCase):
    def test_says_its_version(self):
        self.assertEqual(tensorwire.__version__, importlib.metadata.version("tensorwire"))

    def test_announces_the_backend_of_pytorch(self):
        found = importlib.metadata.entry_points(group="torch.distributed.backends")
        self.assertIn("tensorwire", found.names)


if __name__ == "__main__":
    unittest.main()
