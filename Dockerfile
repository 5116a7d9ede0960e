# Dockerfile: a system with everything that building, testing and grading need. The repository itself is not copied:
#
#   docker build -t lockstep .
#   docker run --rm -it --shm-size 2g -v "$PWD":/lockstep lockstep scripts/test.sh
#
# --shm-size: the ranks of a host share memory in /dev/shm, of which Docker gives 64 MB (notes/allreduce.md).
# To grade: course/README.md, "What a hostile submission can do".
FROM debian:12
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    bubblewrap gdb git jq less ninja-build python3
COPY CMakeLists.txt /setup/
COPY scripts/setup.sh scripts/mpi.sh /setup/scripts/
RUN /setup/scripts/setup.sh && rm -rf /setup /var/lib/apt/lists/*
# The work tree belongs to another user than the container's root.
RUN git config --system --add safe.directory /lockstep
WORKDIR /lockstep
CMD ["bash"]
