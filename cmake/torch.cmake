# libtorch: the system's, or that inside the PyTorch of SUREFOOT_PYTHON. Variables: TORCH_INCLUDE_DIRS, TORCH_LIBRARIES,
# SUREFOOT_TORCH_CUDA (whether it has CUDA). PyTorch's own package file would look for CUDA once more, its way, and fail where
# a library is not beside the toolkit: from a PyTorch only headers and libraries are taken.
set(SUREFOOT_TORCH_CUDA FALSE)
if(NOT SUREFOOT_PYTHON)
  find_package(Torch REQUIRED)
  return()
endif()
execute_process(
  COMMAND ${SUREFOOT_PYTHON} -c "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi(), sep=';')"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${SUREFOOT_PYTHON} has no PyTorch: tools/install_torch.sh makes one")
endif()
list(GET found 0 torch)
list(GET found 1 version)
list(GET found 2 cuda)
list(GET found 3 new_abi)
# The wheels before 2.7 have the strings of g++ 4: nothing of Debian's could be linked with them.
if(NOT new_abi STREQUAL "True")
  message(FATAL_ERROR "PyTorch ${version} is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0): take 2.7 or later")
endif()
# Its headers without those of the libraries that it brings along: ours are the system's, of other versions (Protobuf 3.13
# there, 3.21 here; what libtorch has inside of it stays inside, see symbols_test).
set(headers ${CMAKE_BINARY_DIR}/torch_include)
file(MAKE_DIRECTORY ${headers})
foreach(folder ATen c10 caffe2 torch)
  file(CREATE_LINK ${torch}/include/${folder} ${headers}/${folder} SYMBOLIC)
endforeach()
set(TORCH_INCLUDE_DIRS ${headers} ${headers}/torch/csrc/api/include)
# The C++ library before them: they are built by a g++ that adds what older systems' library lacks, and all of std::filesystem
# stands in libtorch.so for everyone to find (there remove_all() calls a null pointer). Who is loaded first is taken.
set(TORCH_LIBRARIES stdc++ ${torch}/lib/libtorch.so ${torch}/lib/libtorch_cpu.so ${torch}/lib/libc10.so)
if(SUREFOOT_CUDA AND EXISTS ${torch}/lib/libtorch_cuda.so)
  # Two runtimes of CUDA in a process do not know each other's streams.
  string(REGEX MATCH "^[0-9]+" major ${cuda})
  if(NOT major EQUAL CUDAToolkit_VERSION_MAJOR)
    message(FATAL_ERROR "PyTorch ${version} is built for CUDA ${cuda}, nvcc is of ${CUDAToolkit_VERSION}: they have to have the same first number")
  endif()
  set(SUREFOOT_TORCH_CUDA TRUE)
  # libtorch_cuda registers its kernels when it is loaded: nothing refers to it by name.
  list(APPEND TORCH_LIBRARIES -Wl,--no-as-needed ${torch}/lib/libtorch_cuda.so -Wl,--as-needed ${torch}/lib/libc10_cuda.so)
endif()
# What those need in turn lies beside them or in PyTorch's other packages: found when a program is loaded.
add_link_options(LINKER:--allow-shlib-undefined)
message(STATUS "libtorch of PyTorch ${version}, with CUDA: ${SUREFOOT_TORCH_CUDA}")
