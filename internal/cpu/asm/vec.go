package main

func vec(l lanes) {}
