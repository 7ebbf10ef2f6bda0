set -euo pipefail
own=10.9.0.$((NODE + 1)) peer=10.9.0.$((2 - NODE))
expect() { [[ $1 == "$2" ]] || { echo "expected '$2', got '$1'"; exit 1; }; }
