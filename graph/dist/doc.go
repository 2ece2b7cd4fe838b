// Package dist makes the graph.Groups of a job: the ranks that train one model on several devices.
//
// Goroutines makes ranks of one process, for tests. Join makes this process a rank of a job of processes, which a
// launcher such as torchrun, Slurm or Kubernetes has started, or Launch: see FromEnv.
//
// The ranks hold one TCP connection each to rank 0. It carries small data (AllGather), errors, and a sign of life every
// second; gradients go from device to device, by NCCL. A process that joins proves that it knows the job's secret, by
// HMAC-SHA256 of random numbers of both ends; what follows is not encrypted. When a rank fails, ends early, falls
// silent or does not come to an operation in time, rank 0 tells all ranks: their calls return its error.
package dist
