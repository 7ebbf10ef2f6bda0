set -euo pipefail
own=10.9.0.$((NODE + 1)) peer=10.9.0.$((2 - NODE))
export TENSORWIRE_VERBS=1  # a test that finds no device fails here, where elsewhere it skips
expect() { [[ $1 == "$2" ]] || { echo "expected '$2', got '$1'"; exit 1; }; }
