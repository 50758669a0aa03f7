# The newcomer's door. On a fresh Debian 12 each of these is all that is needed:
#   make run    install what is missing, build, fetch the example's data, train, kill a worker, go on
#   make spot   a job over four machines made on this one, which are lost and come back
#   make test   the same preparation, then every test that needs no GPU
#   make cuda   builds what trains on GPUs into build/cuda (needs CUDA and NCCL; a PyTorch is installed where there is none)
.PHONY: run spot test formatted build packages bundle cuda cuda-check cuda-bundle sanitize fuzz format bench clean

JOBS ?= $(shell nproc)

run: build
	@examples/dictionary-gpt/demo.sh

spot: build
	@tools/install_packages.sh spot
	@examples/spot-cluster/demo.sh

build: packages build/release/build.ninja
	@cmake --build build/release --parallel $(JOBS)

# Programs and libraries for machines that have neither: resources.bundle.
bundle: build
	@tools/make_bundle.sh build/release/bin build/surefoot-bundle.tar.gz

# Against the libtorch of a PyTorch, for GPUs. cuda-check runs there what needs none; the bundle is for nodes with a PyTorch.
cuda: packages
	@tools/install_torch.sh
	@cmake --preset cuda -Wno-dev --log-level=WARNING >/dev/null
	@cmake --build build/cuda --parallel $(JOBS) --target programs

cuda-check: packages
	@tools/check_cuda_build.sh $(JOBS)

cuda-bundle: cuda
	@tools/make_bundle.sh build/cuda/bin build/surefoot-cuda-bundle.tar.gz

packages:
	@tools/install_packages.sh build

build/release/build.ninja:
	@cmake --preset release -Wno-dev --log-level=WARNING >/dev/null

test: formatted build
	@tools/install_packages.sh spot
	@tools/install_python.sh
	@examples/fetch_data.sh
	@ctest --test-dir build/release --output-on-failure --label-exclude gpu --no-tests=error

# Before the build, which takes longer.
formatted:
	@tools/install_packages.sh test
	@tools/check_format.sh

# Everything that links neither MPI nor libtorch, under AddressSanitizer + UBSan and under ThreadSanitizer.
sanitize: packages
	@tools/sanitize.sh $(JOBS)

# Every parser of bytes from outside, eight seconds each, from the committed corpora.
fuzz: packages
	@tools/install_packages.sh test
	@tools/fuzz.sh

bench: build
	@tools/bench.sh

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf build
