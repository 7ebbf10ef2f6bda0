# The suite that every fabric passes, on a fabric that needs no device: what fails here is the machine.
test-tcp --test-threads=1
