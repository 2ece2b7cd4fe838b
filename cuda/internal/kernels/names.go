package kernels

// byType are the kernels of an op, by storage type.
type byType [3]string

func typed(op string) byType {
	var k byType
	for t := range k {
		k[t] = "nsa_" + op + suffixes[t]
	}
	return k
}

// halfTyped is typed for ops between float32 and half precision.
func halfTyped(op string) byType {
	k := typed(op)
	k[F32] = ""
	return k
}

// transposed is halfTyped for the products of a and b as they are (n) and transposed (t).
func transposed(op string) [4]byType {
	return [4]byType{halfTyped(op + "_nn"), halfTyped(op + "_nt"), halfTyped(op + "_tn"), halfTyped(op + "_tt")}
}

// names are the kernels that the ops of this package launch, made once: launches allocate no strings.
var names = struct {
	silu, siluGrad, sigmoid, sigmoidGrad, add                       byType
	softmax, softmaxGrad                                            byType
	rope                                                            byType
	rmsnorm, rmsnormGrad                                            byType
	columnSum                                                       byType
	crossEntropy, crossEntropyGrad                                  byType
	embedding, embeddingChunks                                      byType
	compressMean, compressMeanGrad, compressGather, compressScatter byType
	gatedSum, gatedSumGrad                                          byType
	matmulLarge, matmulSmall                                        [4]byType // half precision only: nn, nt, tn, tt
	castTo, castFrom                                                byType    // half precision only
	sumBlocks, crossEntropyMean, crossEntropyScale, embeddingRows   string
	sortCount, sortScan, sortPlace, fill16, fill32, copying         string
	adamWSquares, adamWNorm, adamWUpdate                            string
	matmul64, matmul128, matmulSum                                  string
}{
	silu: typed("silu"), siluGrad: typed("silu_grad"), sigmoid: typed("sigmoid"), sigmoidGrad: typed("sigmoid_grad"),
	add: typed("add"), softmax: typed("softmax"), softmaxGrad: typed("softmax_grad"), rope: typed("rope"),
	rmsnorm: typed("rmsnorm"), rmsnormGrad: typed("rmsnorm_grad"), columnSum: typed("column_sum"),
	crossEntropy: typed("cross_entropy"), crossEntropyGrad: typed("cross_entropy_grad"),
	embedding: typed("embedding"), embeddingChunks: typed("embedding_chunks"),
	compressMean: typed("compress_mean"), compressMeanGrad: typed("compress_mean_grad"),
	compressGather: typed("compress_gather"), compressScatter: typed("compress_scatter"),
	gatedSum: typed("gated_sum"), gatedSumGrad: typed("gated_sum_grad"),
	matmulLarge: transposed("matmul_large"), matmulSmall: transposed("matmul_small"), castTo: halfTyped("cast_to"), castFrom: halfTyped("cast_from"),
	sumBlocks: "nsa_sum_blocks_f32", crossEntropyMean: "nsa_cross_entropy_mean_f32",
	crossEntropyScale: "nsa_cross_entropy_scale_f32", embeddingRows: "nsa_embedding_rows_f32",
	sortCount: "nsa_sort_count_i32", sortScan: "nsa_sort_scan_i32", sortPlace: "nsa_sort_place_i32",
	fill16: "nsa_fill_b16", fill32: "nsa_fill_b32", copying: "nsa_copy",
	adamWSquares: "nsa_adamw_squares_f32", adamWNorm: "nsa_adamw_norm_f64", adamWUpdate: "nsa_adamw_update_f32",
	matmul64: "nsa_matmul64_f32", matmul128: "nsa_matmul128_f32", matmulSum: "nsa_matmul_sum_f32",
}
