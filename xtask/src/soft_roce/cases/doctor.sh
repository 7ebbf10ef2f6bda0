# The doctor finds the device, tries it, and has nothing against it; without the link it says what to do.
tensorwire doctor | tee /tmp/doctor
grep -q 'rxe0' /tmp/doctor
tensorwire doctor --json >/tmp/json
grep -q '"transport":"verbs"' /tmp/json
rdma link delete rxe0
tensorwire doctor | tee /tmp/doctor
grep -q 'rdma link add rxe0 type rxe netdev' /tmp/doctor
# and what it said is what a job says
status=0
tensorwire train --transport verbs --steps 1 2>&1 | tee /tmp/train || status=$?
expect "$status" 2
grep -q 'rdma link add rxe0 type rxe netdev' /tmp/train
