package hns

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Result is an HRESULT of HNS.
type Result uint32

// HRESULTs of winerror.h, facility HCN (0x3b), and Win32 errors (facility 7) that HNS is documented or was seen to return. Each rule
// that uses one cites its source.
const (
	NetworkNotFound        Result = 0x803b0001
	EndpointNotFound       Result = 0x803b0002
	AdapterNotFound        Result = 0x803b0006
	PolicyNotFound         Result = 0x803b0008
	InvalidNetwork         Result = 0x803b000a
	InvalidNetworkType     Result = 0x803b000b
	InvalidPolicy          Result = 0x803b000d
	InvalidPolicyType      Result = 0x803b000e
	InvalidRemoteOperation Result = 0x803b000f
	NetworkExists          Result = 0x803b0010
	PolicyExists           Result = 0x803b0012
	PortExists             Result = 0x803b0013
	AlreadyAttached        Result = 0x803b0014
	Unsupported            Result = 0x803b0015
	InvalidGUID            Result = 0x803b0019
	InvalidJSON            Result = 0x803b001b
	InvalidIP              Result = 0x803b001e
	InNamespace            Result = 0x803b002b
	HasReferences          Result = 0x803b002c
	InvalidInternalPort    Result = 0x803b002d
	AddressReserved        Result = 0x803b002f
	NotImplemented         Result = 0x80004001
	InvalidHandle          Result = 0x80070006
	InvalidParameter       Result = 0x80070057
	AlreadyExists          Result = 0x800700b7 // ERROR_ALREADY_EXISTS
	ServiceNotActive       Result = 0x80070426
	ElementNotFound        Result = 0x80070490
	ObjectExists           Result = 0x80071392
)

// messages are Windows' texts of the codes (FormatMessage, English), with HNS's trailing space. Callers must not depend on them: other
// Windows languages translate them.
var messages = map[Result]string{
	NetworkNotFound:        "The network was not found. ",
	EndpointNotFound:       "The endpoint was not found. ",
	AdapterNotFound:        "An adapter was not found. ",
	PolicyNotFound:         "A policy was not found. ",
	InvalidNetwork:         "The network is invalid. ",
	InvalidNetworkType:     "The network type is invalid. ",
	InvalidPolicy:          "The provided policy configuration is invalid or missing parameters. ",
	InvalidPolicyType:      "The policy type is invalid. ",
	InvalidRemoteOperation: "The operation is invalid for a remote endpoint. ",
	NetworkExists:          "A network with this name already exists. ",
	PolicyExists:           "The policy already exists. ",
	PortExists:             "The specified port already exists. ",
	AlreadyAttached:        "This endpoint is already attached to the switch. ",
	Unsupported:            "The specified request is unsupported. ",
	InvalidGUID:            "There was a failure to convert the GUID. ",
	InvalidJSON:            "Invalid JSON document string. ",
	InvalidIP:              "IP address is either invalid or not part of any configured subnet(s). ",
	InNamespace:            "The endpoint is already in a namespace. ",
	HasReferences:          "The entity has references and cannot be deleted. ",
	InvalidInternalPort:    "The internal port must be non-zero. ",
	AddressReserved:        "An address provided is invalid or reserved. ",
	NotImplemented:         "Not implemented ",
	InvalidHandle:          "The handle is invalid. ",
	InvalidParameter:       "The parameter is incorrect. ",
	AlreadyExists:          "Cannot create a file when that file already exists. ",
	ServiceNotActive:       "The service has not been started. ",
	ElementNotFound:        "Element not found. ",
	ObjectExists:           "The object already exists. ",
}

// failure is a refused call.
type failure struct {
	code    Result
	detail  string // for the log: HNS does not report it
	unknown bool   // the call is not simulated
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s(%#x) %s", messages[f.code], uint32(f.code), f.detail)
}

func fail(code Result, format string, args ...any) error {
	return &failure{code: code, detail: fmt.Sprintf(format, args...)}
}

// unknown refuses what is not simulated. The log marks it, so that the test fails.
func unknown(code Result, format string, args ...any) error {
	return &failure{code: code, detail: fmt.Sprintf(format, args...), unknown: true}
}

// resultOf returns the failure in err; the zero failure means success.
func resultOf(err error) failure {
	var f *failure
	switch {
	case err == nil:
		return failure{}
	case errors.As(err, &f):
		return *f
	}
	return failure{code: InvalidParameter, detail: err.Error(), unknown: true}
}

// record returns the JSON document that accompanies the HRESULT (HCN_ErrorRecord), as seen in
// kubernetes-sigs/sig-windows-tools#71.
func (f failure) record() string {
	text, err := json.Marshal(struct {
		Success   bool
		Error     string
		ErrorCode uint32
	}{false, messages[f.code], uint32(f.code)})
	if err != nil {
		panic(err) // a struct of three simple values
	}
	return string(text)
}
