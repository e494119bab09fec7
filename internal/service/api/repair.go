package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/millrace/millrace/internal/service/operate"
)

// PathRepair is the path of the repair of what a verification has found.
const PathRepair = PathVerification + "/repair"

// NewRepair is the body that asks for a repair.
type NewRepair struct {
	// ID is that of the verification that repairs, as NewVerification has it.
	ID string `json:"id,omitempty"`
	operate.RepairWhat
}

func (a *API) repair(c *call) (any, error) {
	var n NewRepair
	if err := c.body(&n, false, `{"all": true}, or {"documents": [{"ns": "shop.orders", "key": "…"}]}`); err != nil {
		return nil, err
	}
	v, made, err := a.o.Desk.Repair(c.Context(), c.caller, c.PathValue("name"), c.PathValue("id"), n.ID, n.RepairWhat)
	if err != nil {
		return nil, err
	}
	return c.toVerify(v, made), nil
}

// Repair asks for documents to be repaired that a verification of a job has found
// different; made is false where that was asked for already.
func (c *Client) Repair(ctx context.Context, name, of string, n NewRepair) (v Verification, made bool, err error) {
	code, err := c.call(ctx, http.MethodPost, ofJob(PathVerifications, name)+"/"+url.PathEscape(of)+"/repair", n, &v)
	return v, code == http.StatusCreated, err
}
