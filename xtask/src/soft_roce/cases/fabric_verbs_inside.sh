# What only a device can show of that fabric, and only from inside.
unit-tensorwire_fabric --test-threads=1 verbs::
