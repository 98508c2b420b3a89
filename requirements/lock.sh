#!/bin/sh
# Pin every requirement: first dev.txt, which contains every package, then its subsets with the same versions.
# Run by `make lock` on the oldest Python supported. Hashes are left out because torch is one release with several builds.
set -eu
cd "$(dirname "$0")"
compile() {
    pip-compile --quiet --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
        --no-emit-options --no-header --annotation-style=line --output-file="$1.txt" $2 "$1.in"
    # Remove the build tag (+cpu, +cu130), which depends on the machine.
    sed -i.bak -E 's/^(torch==[0-9.]+)\+[a-z0-9]+/\1/' "$1.txt" && rm "$1.txt.bak"
}
compile dev ""
for subset in web workers simulation tracing local peers; do compile "$subset" "--constraint=dev.txt"; done
